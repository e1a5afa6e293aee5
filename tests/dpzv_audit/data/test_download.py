import gzip
import hashlib
import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from dpzv_audit.base.errors import AuditError
from dpzv_audit.data import DATASETS, DataSpec, Partition, RemoteFile, Source
from dpzv_audit.data.download import check_url, download

from ...helpers.refusals import refusal, refused

CONTENT = b"the original file" * 100_000


class Handler(BaseHTTPRequestHandler):
    """Serves `CONTENT` at /good, and mischief elsewhere; the server's `asked` counts requests."""

    def do_GET(self):
        self.server.asked.append(self.path)
        if self.path == "/absent":
            self.send_error(404)
        elif self.path.startswith("/to?"):
            self.send_response(302)
            self.send_header("Location", self.path[4:])
            self.end_headers()
        elif self.path == "/short":
            self.send(CONTENT[:-1])
        elif self.path == "/long":
            self.send(CONTENT + b"!" * 10_000_000)
        elif self.path == "/other":
            self.send(CONTENT[::-1])
        elif self.path == "/breaks":
            self.send_response(200)
            self.send_header("Content-Length", str(len(CONTENT)))
            self.end_headers()
            self.wfile.write(CONTENT[:1000])
        elif self.path == "/garbage":
            self.wfile.write(b"no http at all\r\n\r\n")
        else:
            self.send(CONTENT)

    def send(self, content):
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        try:
            self.wfile.write(content)
        except ConnectionError:
            return  # the client has had enough

    def log_message(self, *_):
        return


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setenv("no_proxy", "*")
    made = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    made.asked = []
    thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield made
    made.shutdown()
    made.server_close()
    thread.join()


def tiny(folder, *files):
    """A data set of `files`, which nobody reads."""
    source = Source(folder=folder, holds="files", origin="", names="", remote=files)
    partitions = {"runs": Partition(clients=1, takes="1")}
    return DataSpec(name="tiny", summary="", reader=tiny, partitions=partitions, source=source)


def remotes(server, *paths, **changes):
    fields = {"size": len(CONTENT), "digest": hashlib.md5(CONTENT, usedforsecurity=False).hexdigest(), **changes}
    files = tuple(
        RemoteFile(url=f"http://127.0.0.1:{server.server_port}{path}", name=f"file{n}.bin", **fields)
        for n, path in enumerate(paths)
    )
    return tiny("tiny-folder", *files)


def failed(folder, table):
    line = refusal(download, table, folder, error=AuditError)
    assert [path for path in folder.rglob("*") if path.is_file()] == []
    return line


def test_files_arrive_whole_with_progress_and_are_not_fetched_again(server, tmp_path):
    seen = []
    totals = []

    def progress(name, total):
        totals.append((name, total))
        return lambda done: seen.append((name, done))

    table = remotes(server, "/good", "/to?/good")
    paths = download(table, tmp_path / "new", progress)
    folder = tmp_path / "new" / "tiny-folder"
    assert paths == (folder / "file0.bin", folder / "file1.bin")
    assert sorted(folder.iterdir()) == sorted(paths)
    assert all(path.read_bytes() == CONTENT for path in paths)
    assert totals == [("file0.bin", len(CONTENT)), ("file1.bin", len(CONTENT))]
    first = [done for name, done in seen if name == "file0.bin"]
    assert first == sorted(first)
    assert first[-1] == len(CONTENT)
    assert server.asked == ["/good", "/to?/good", "/good"]
    download(table, tmp_path / "new")
    assert len(server.asked) == 3


def test_sha256_is_checked_too_and_another_file_is_replaced(server, tmp_path):
    table = remotes(server, "/good", algorithm="sha256", digest=hashlib.sha256(CONTENT).hexdigest())
    path = tmp_path / "tiny-folder" / "file0.bin"
    path.parent.mkdir()
    path.write_bytes(b"half a file")
    assert download(table, tmp_path) == (path,)
    assert path.read_bytes() == CONTENT
    assert path.stat().st_mode & 0o777 == 0o644


def test_a_file_gzipped_anew_is_kept_and_one_that_holds_something_else_replaced(server, tmp_path):
    table = remotes(server, "/good", unpacked=hashlib.md5(b"inside").hexdigest())
    path = tmp_path / "tiny-folder" / "file0.bin"
    path.parent.mkdir()
    path.write_bytes(gzip.compress(b"inside"))
    download(table, tmp_path)
    assert server.asked == []
    bomb = gzip.compress(bytes(16 * len(CONTENT) + 1))
    for other in (gzip.compress(b"inside")[:-1], gzip.compress(b"other"), b"inside", bomb):
        path.write_bytes(other)
        download(table, tmp_path)
        assert path.read_bytes() == CONTENT


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("/absent", "cannot be downloaded (Not Found)"),
        ("/short", f"sent only {len(CONTENT) - 1} bytes instead of {len(CONTENT)} bytes"),
        ("/long", f"sent more instead of {len(CONTENT)} bytes"),
        ("/other", "sent another file: md5 is "),
        ("/breaks", f"sent only 1000 bytes instead of {len(CONTENT)} bytes"),
        ("/garbage", "cannot be downloaded ("),
    ],
)
def test_what_servers_do_wrong_leaves_nothing_behind(server, tmp_path, path, message):
    text = failed(tmp_path, remotes(server, path))
    assert text.startswith(f"http://127.0.0.1:{server.server_port}{path} {message}")
    assert f"put the original file0.bin into {tmp_path}/tiny-folder yourself" in text


def test_a_failed_download_leaves_what_was_there(server, tmp_path):
    path = tmp_path / "tiny-folder" / "file0.bin"
    path.parent.mkdir()
    path.write_bytes(b"older")
    with refused("sent another file", AuditError):
        download(remotes(server, "/other"), tmp_path)
    assert path.read_bytes() == b"older"
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("target", ["http://example.org/file", "ftp://127.0.0.1/file", "http://127.0.0.2/f"])
def test_redirects_away_from_https_are_refused(server, tmp_path, target):
    assert f"leads to {target}, must stay with https" in failed(tmp_path, remotes(server, f"/to?{target}"))


def test_redirects_to_a_file_are_refused(server, tmp_path):
    assert "Redirection to url 'file:///etc/passwd' is not allowed" in failed(
        tmp_path, remotes(server, "/to?file:///etc/passwd")
    )


@pytest.mark.parametrize("url", ["http://example.org/a", "file:///etc/passwd", "ftp://example.org/a", "/etc/passwd"])
def test_only_https_is_fetched(tmp_path, url):
    text = failed(tmp_path, tiny("tiny", RemoteFile(url=url, name="a", size=1, digest="0")))
    assert "must stay with https" in text


def test_a_server_elsewhere_cannot_lead_to_this_machine():
    check_url("https://example.org/b", "https://example.com/a")
    check_url("http://127.0.0.1:80/b", "http://127.0.0.1:80/a")
    for url in ("http://127.0.0.1/b", "http://example.org/b"):
        with refused(f"leads to {url}, must stay with https", AuditError):
            check_url(url, "https://example.com/a")


def test_offline_is_one_line(tmp_path, monkeypatch):
    monkeypatch.setenv("no_proxy", "*")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]  # bound but not listening: a connection is refused
        file = RemoteFile(url=f"http://127.0.0.1:{port}/a", name="a", size=1, digest="0")
        text = failed(tmp_path, tiny("tiny", file))
    assert "cannot be downloaded ([Errno" in text or "cannot be downloaded (Connection refused)" in text


def test_sets_without_a_url_and_folders_that_cannot_be_are_the_user_s_mistake(server, tmp_path):
    with refused("mfeat cannot be downloaded: no plain URL has it"):
        download(DATASETS["mfeat"], tmp_path)
    taken = tmp_path / "file"
    taken.write_bytes(b"")
    with refused("cannot be made"):
        download(remotes(server, "/good"), taken)


def test_the_table_of_sources_is_https_with_whole_digests():
    fetched = [name for name, spec in DATASETS.items() if spec.remote]
    assert fetched == ["mnist", "fashion-mnist", "cifar10", "imdb", "adult"]
    for name in fetched:
        for file in DATASETS[name].remote:
            assert file.url.startswith("https://")
            assert file.url.endswith(file.name)
            assert len(bytes.fromhex(file.digest)) == hashlib.new(file.algorithm).digest_size
            assert file.size > 0


@pytest.mark.data
@pytest.mark.parametrize("real", [("mnist/train-images-idx3-ubyte.gz", "adult/adult.data")], indirect=True)
def test_real_files_are_what_the_table_says_and_are_not_fetched_again(real, monkeypatch):
    def no_network(*_, **__):
        raise AssertionError("the network was asked")

    monkeypatch.setattr(socket.socket, "connect", no_network)
    for name in ("mnist", "adult"):
        paths = download(DATASETS[name], real)
        assert [path.stat().st_size for path in paths] == [file.size for file in DATASETS[name].remote]
