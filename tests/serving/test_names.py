"""One rule for the names of models and versions: what is served is what is loaded and exported."""

import itertools

import pytest
from registries import running

import onepass
import serving
from onepass.bundles.manifest import NAME_RULE, VERSION_RULE, check_folder
from onepass.foundation.errors import UserError
from serving.client.client import server_and_name
from serving.engine.registry import scan

NAMES = ("voice", "A", "7", "a.b_c-d", "v" * 128)
NO_NAMES = ("na me", "n\u00e9", "-dash", ".hid", "_x", "a+b", "a%20b", "v" * 129, "\uff41")
VERSIONS = ("0", "1", "10", "9" * 18)
NO_VERSIONS = (
    *("01", "00", "\u0663", "9" * 19, "1" * 23, "-1", "+1", "1.0", "1_0", "one", " 1", "\u00b2"),
)


def written(root, name, version):
    """A folder NAME/VERSION that looks like a bundle to everyone who looks for one."""
    folder = root / name / version
    folder.mkdir(parents=True)
    (folder / "manifest.json").write_text("{}")
    (folder / "model.json").write_text("{}")
    (folder / "saved_model.pb").write_bytes(b"")
    return folder


def refusal(function, *given):
    with pytest.raises(UserError) as refused:
        function(*given)
    assert "\n" not in str(refused.value)
    return str(refused.value)


CASES = [*itertools.product(NAMES + NO_NAMES, ("1",)), *(("voice", v) for v in VERSIONS)]
CASES += [("voice", version) for version in NO_VERSIONS]


@pytest.mark.parametrize(("name", "version"), CASES)
def test_what_is_served_is_what_can_be_loaded_exported_and_asked_for(tmp_path, name, version):
    folder = written(tmp_path, name, version)
    seen = scan(tmp_path)
    found = {name: [str(one.number) for one in each] for name, each in seen.versions.items()}
    is_served = found.get(name) == [version]
    assert is_served == (name in NAMES and version in VERSIONS)
    loads = [refusal(load, folder) for load in (onepass.load, serving.load)]
    if is_served:
        assert seen.ignored == {}
        check_folder(folder, "`--out`")
        assert server_and_name(f"http://localhost:8501/{name}")[1] == name
        assert all("manifest.json" in line for line in loads)  # which is empty: not for its name
        return
    rule = VERSION_RULE if version in NO_VERSIONS else NAME_RULE
    place = f"{name}/{version}" if version in NO_VERSIONS else name
    assert list(seen.ignored) == [place] and rule in seen.ignored[place]
    for line in (*loads, refusal(check_folder, folder, "`--out`")):
        assert f"must end in NAME/VERSION, such as voice/1, got {folder}: " in line
        assert rule in line
    if name in NO_NAMES:
        assert NAME_RULE in refusal(server_and_name, f"http://localhost:8501/{name}")
        with serving.Client("http://127.0.0.1:1") as client:
            assert refusal(client.spec, name).startswith(f"`name` {NAME_RULE}, got ")


def test_a_version_is_written_in_one_way(tmp_path):
    for version in ("1", "01", "001", "\u0663"):
        written(tmp_path, "voice", version)
    seen = scan(tmp_path)
    assert [found.number for found in seen.versions["voice"]] == [1]
    assert [found.path.name for found in seen.versions["voice"]] == ["1"]
    assert set(seen.ignored) == {"voice/01", "voice/001", "voice/\u0663"}
    assert str(tmp_path / "voice" / "1") in refusal(serving.load, tmp_path / "voice")


def test_a_link_is_a_version_only_under_its_own_number(tmp_path):
    written(tmp_path, "voice", "7")
    (tmp_path / "voice" / "8").symlink_to("7")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "7").symlink_to("../voice/7")
    seen = scan(tmp_path)
    assert {name: [one.number for one in found] for name, found in seen.versions.items()} == {
        "voice": [7],
        "other": [7],
    }
    assert seen.ignored == {"voice/8": "it is a link to `voice/7`, not NAME/8"}


async def test_ignored_folders_are_named_once_with_the_reason(store, caplog):
    store.add()
    for name, version in (("na me", "1"), (".hid", "1"), ("voice", "\u0663")):
        written(store.root, name, version)
    (store.root / ".git" / "objects").mkdir(parents=True)  # no model of anyone
    (store.root / "lost+found").mkdir()
    async with running(store) as registry:
        for _ in range(3):
            await registry.rescan()
        assert registry.names() == ["voice"]
    lines = {
        one.fields["folder"]: one.getMessage()
        for one in caplog.records
        if one.getMessage().startswith("ignored: ")
    }
    assert len([one for one in caplog.records if one.getMessage().startswith("ignored: ")]) == 3
    assert lines == {
        ".hid": f"ignored: the name of a model {NAME_RULE}, got `.hid`",
        "na me": f"ignored: the name of a model {NAME_RULE}, got `na me`",
        "voice/\u0663": f"ignored: a version {VERSION_RULE}, got `\u0663`",
    }
