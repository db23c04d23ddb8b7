"""Where the shared catalog is kept: embedded for one host, etcd for several controllers. One protocol, one contract suite."""
