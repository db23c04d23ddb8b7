"""The fs worker: answers the kernel. The only room that knows pyfuse3, libfuse and errnos."""
