"""The worker of `.jobs`: a FUSE connection without OPEN, whose samples are in the page cache before their step."""
