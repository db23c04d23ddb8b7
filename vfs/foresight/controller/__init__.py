"""The controller: takes events in, predicts, and brings copies about. One of several leads; all of them answer."""
