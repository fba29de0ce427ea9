"""Jupyter's kernels over Unix sockets: of two programs that start at once, one may take a port that the other chose."""

from jupyter_client.connect import ConnectionFileMixin

ConnectionFileMixin.transport.default_value = "ipc"
