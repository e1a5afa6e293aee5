"""Runs `dpzv-audit` in forks of a process that has loaded it: most commands of tests last shorter than their imports.

    python forked.py serve SOCKET          loads everything, then forks for whoever asks
    python -S -E forked.py SOCKET ARGS     runs `dpzv-audit ARGS` there, in this folder, environment and output

A fork runs the same code to the same output and exit code; it has its imports done, and the number of threads that the
server started with. Where PYTHONPATH names another place than this checkout, a process of its own runs the command.
"""

import contextlib
import gc
import json
import os
import select
import signal
import socket
import sys

_STREAMS = 3
_MOST = 1 << 20


def ask(path, arguments):
    """Have the server at `path` run `dpzv-audit ARGUMENTS`; return the exit code."""
    here = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    if os.environ.get("PYTHONPATH", here) != here:
        os.execv(sys.executable, [sys.executable, "-P", "-m", "dpzv_audit", *arguments])
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as line:
        line.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _MOST)
        line.connect(path)
        request = {"arguments": arguments, "folder": os.getcwd(), "environment": dict(os.environ)}
        socket.send_fds(line, [json.dumps(request).encode()], list(range(_STREAMS)))
        return int(line.recv(16))


def load():
    """Import what commands import."""
    import importlib
    import pkgutil

    for name in ("dpzv_audit", "mechanisms", "attacks", "reports"):
        package = importlib.import_module(name)
        for module in pkgutil.walk_packages(package.__path__, f"{name}."):
            if not module.name.endswith(("__main__", ".flower", ".pytest_plugin")):
                importlib.import_module(module.name)
    for name in ("scipy.stats", "sklearn.metrics", "matplotlib.pyplot", "prv_accountant", "torch"):
        importlib.import_module(name)
    # Forks share what each of them would read again: the versions of what is installed, and the digest of the code.
    sys.modules["dpzv_audit.runs"].environment()
    sys.modules["dpzv_audit.claims.cache"].code_digest()
    # What a test reads must not depend on how slow the machine is.
    sys.modules["dpzv_audit.cli.heartbeat"].EVERY_SECONDS = 1e6


def serve(path):
    """Answer requests at `path` until killed; return, in a fork, the arguments that it is to run."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(path)
    listener.listen(16)
    print("listens", flush=True)
    load()
    gc.freeze()  # forks share what is loaded, and collect nothing of it
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for keepers
    while True:
        line, _ = listener.accept()
        if os.fork():
            line.close()
            continue
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        listener.close()
        message, streams, _, _ = socket.recv_fds(line, _MOST, _STREAMS)
        worker = os.fork()
        if worker:
            for stream in streams:
                os.close(stream)
            _keep(worker, line)
        line.close()
        os.setpgid(0, 0)
        for number, (stream, name) in enumerate(zip(streams, ("stdin", "stdout", "stderr"), strict=True)):
            os.dup2(stream, number)
            os.close(stream)
            # As an interpreter makes them; that of the server took what is written for a file.
            errors = "backslashreplace" if name == "stderr" else "strict"
            setattr(sys, name, os.fdopen(number, "w" if number else "r", errors=errors, closefd=False))
        request = json.loads(message)
        os.environ.clear()
        os.environ.update(request["environment"])
        os.chdir(request["folder"])
        return request["arguments"]


def _keep(worker, line):
    """Tell how the process `worker` ended, or end it where nobody listens any more."""
    ended = os.pidfd_open(worker)
    ready, _, _ = select.select([ended, line], [], [])
    if ended not in ready:
        os.killpg(worker, signal.SIGKILL)
    code = os.waitstatus_to_exitcode(os.waitpid(worker, 0)[1])
    with contextlib.suppress(OSError):
        line.send(str(code).encode())
    os._exit(0)


if __name__ == "__main__":
    if sys.argv[1] != "serve":
        code = ask(sys.argv[1], sys.argv[2:])
        sys.exit(code if code >= 0 else 128 - code)
    sys.argv = ["dpzv-audit", *serve(sys.argv[2])]
    from dpzv_audit.cli import main

    sys.exit(main())
