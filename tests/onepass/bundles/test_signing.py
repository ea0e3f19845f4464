"""A signature is valid for one name and version, and for every bit of the bundle."""

import json
import os
import shutil
import subprocess

import pytest

pytest.importorskip("cryptography", reason="onepass[sign] is not installed")

from fake_bundle import FakeModelStore, load_from_disk

import onepass
import onepass.bundles.bundle
import serving
from onepass.bundles.manifest import (
    MANIFEST,
    SIGNATURE,
    read_key,
    sign,
    signed_manifest,
    verify,
    write_manifest,
)
from onepass.foundation.rules import UserError
from serving.engine.registry import bundle_loader
from serving.settings import Settings


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    """A folder with the files own.pem, own.pub, other.pem, other.pub and rsa.pem, by openssl."""
    folder = tmp_path_factory.mktemp("keys")

    def openssl(*words):
        subprocess.run(["openssl", *words], cwd=folder, check=True, capture_output=True)

    for name in ("own", "other"):
        openssl("genpkey", "-algorithm", "ed25519", "-out", f"{name}.pem")
        openssl("pkey", "-in", f"{name}.pem", "-pubout", "-out", f"{name}.pub")
    openssl("genpkey", "-algorithm", "rsa", "-pkeyopt", "rsa_keygen_bits:1024", "-out", "rsa.pem")
    return folder


@pytest.fixture
def bundle(tmp_path, keys):
    """The folder voice/1, signed by `own`."""
    folder = tmp_path / "voice/1"
    folder.mkdir(parents=True)
    (folder / "model.json").write_text(json.dumps({"kind": "sound", "control": {}}))
    write_manifest(folder)
    sign(folder, "voice", 1, read_key(keys / "own.pem", "private"))
    return folder


def test_what_one_of_the_keys_signed_is_known(bundle, keys):
    own, other = (read_key(keys / name, "public") for name in ("own.pub", "other.pub"))
    digest = signed_manifest(bundle, [other, own])
    assert len(digest) == 64
    verify(bundle, digest)  # the signature is no file of the bundle
    (bundle / SIGNATURE).unlink()
    assert signed_manifest(bundle, [own]) == ""


def change_the_manifest(folder):
    (folder / "model.json").write_text("{}")
    write_manifest(folder)


def flip_a_bit(folder):
    data = bytearray((folder / SIGNATURE).read_bytes())
    data[5] ^= 1
    (folder / SIGNATURE).write_bytes(data)


def shorten(folder):
    (folder / SIGNATURE).write_bytes(b"")


@pytest.mark.parametrize("change", [change_the_manifest, flip_a_bit, shorten])
def test_a_signature_of_something_else_is_refused(bundle, keys, change):
    change(bundle)
    with pytest.raises(UserError, match="is signed by none of the keys"):
        signed_manifest(bundle, [read_key(keys / "own.pub", "public")])


def test_a_signature_of_another_key_name_or_version_is_refused(bundle, keys):
    own, other = (read_key(keys / name, "public") for name in ("own.pub", "other.pub"))
    with pytest.raises(UserError, match="is signed by none of the keys"):
        signed_manifest(bundle, [other])
    for place in ("voice/2", "digits/1"):
        moved = shutil.copytree(bundle, bundle.parents[1] / place)
        with pytest.raises(UserError, match="or was changed or renamed since"):
            signed_manifest(moved, [own])


def test_a_manifest_that_is_changed_after_its_signature_was_checked_is_refused(bundle, keys):
    digest = signed_manifest(bundle, [read_key(keys / "own.pub", "public")])
    change_the_manifest(bundle)
    with pytest.raises(UserError, match="is not the one that was signed"):
        verify(bundle, digest)


def test_a_file_that_is_changed_under_a_signed_manifest_is_refused(bundle, keys):
    (bundle / "model.json").write_text("{}")
    with pytest.raises(UserError, match=r"model\.json differs"):
        verify(bundle, signed_manifest(bundle, [read_key(keys / "own.pub", "public")]))


def test_keys_of_another_kind_are_one_line(keys, bundle):
    for kind, name, says in (
        ("private", "rsa.pem", "must be an ed25519 key"),
        ("private", "own.pub", "must be a private key in PEM"),
        ("public", "own.pem", "must be a public key in PEM"),
        ("public", "none.pub", "Cannot read the key .*: No such file"),
    ):
        with pytest.raises(UserError, match=says):
            read_key(keys / name, kind)
    os.mkfifo(bundle / "pipe")
    with pytest.raises(UserError, match="must be a plain file"):
        read_key(bundle / "pipe", "public")


def test_without_a_sandbox_only_what_is_trusted_is_loaded(bundle, keys, monkeypatch):
    store = FakeModelStore(bundle.parents[1])
    store.add("unsigned")
    given = []

    def load(path, backend, *digest_and_weights):
        given.append(digest_and_weights)
        return load_from_disk(path, backend)

    monkeypatch.setattr(onepass.bundles.bundle, "load", load)
    trusting = bundle_loader(Settings(sandbox=False, trust=(str(keys / "own.pub"),)))
    assert trusting(bundle).name == "voice"
    with pytest.raises(UserError, match="must be signed to be loaded without a sandbox"):
        trusting(store.root / "unsigned/1")
    assert bundle_loader(Settings(sandbox=False))(store.root / "unsigned/1").name == "unsigned"
    digest = signed_manifest(bundle, [read_key(keys / "own.pub", "public")])
    assert given == [(digest, "float32"), ("", "float32")]


def test_what_is_trusted_runs_in_the_server_and_all_else_in_a_sandbox(bundle, keys, monkeypatch):
    store = FakeModelStore(bundle.parents[1])
    store.add("unsigned")
    sandboxed = []
    monkeypatch.setattr(onepass.bundles.bundle, "load", lambda path, *rest: load_from_disk(path))
    monkeypatch.setattr(
        "serving.engine.registry.SandboxedBundle", lambda path, *rest: sandboxed.append(path)
    )
    load = bundle_loader(Settings(trust=(str(keys / "own.pub"),)))
    load(bundle)
    load(store.root / "unsigned/1")
    assert sandboxed == [store.root / "unsigned/1"]


@pytest.mark.slow
def test_export_signs_for_the_name_and_the_version_that_it_writes(tmp_path, keys):
    image_bundles = pytest.importorskip("image_bundles")
    out = tmp_path / "drawer/3"
    words = ["export", image_bundles.model_folder("pixelcnn"), "--out", out]
    assert onepass.main([*map(str, words), "--sign", str(keys / "own.pem")]) == 0
    assert (out / MANIFEST).exists() and (out / SIGNATURE).stat().st_size == 64
    digest = signed_manifest(out, [read_key(keys / "own.pub", "public")])
    assert serving.load(out, manifest_digest=digest).version == 3


def test_a_key_that_cannot_sign_is_found_before_the_export(tmp_path, keys, capsys):
    words = ["export", "shipped-digits", "--out", tmp_path / "a/1", "--sign", keys / "own.pub"]
    assert onepass.main([str(word) for word in words]) == 2
    assert "must be a private key in PEM" in capsys.readouterr().err
    assert not (tmp_path / "a").exists()
