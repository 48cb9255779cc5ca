"""Which directories are versions that may be served, and what is said of the others."""

from __future__ import annotations

import pytest

from sources.servable_to_monitor import ServableToMonitor
from sources.version_policy import Specific
from tests.sources.stepped_source import monitor, world


def test_a_version_written_in_place_waits_for_its_manifest() -> None:
    """Files that are still being written are not served, however long it takes."""
    w = world()
    w.publish(1)
    w.poll()
    w.files.write("/models/digits/2/model.pt", b"half")
    w.clock.advance(1000)
    assert [versions for _, versions in w.poll()] == [[1]]
    assert "version 2" in w.source.problems()["digits"][0]
    w.files.write("/models/digits/2/servable.json", b"{}")
    assert w.poll() == [("digits", [2])]


def test_a_hand_written_version_is_served_once_it_is_still() -> None:
    """Without a manifest, signatures.json and some quiet time are needed."""
    w = world(settle_s=2.0)
    w.files.write("/models/digits/1/model.pt", b"part")
    w.files.write("/models/digits/1/signatures.json", b"{}")
    assert w.poll() == [("digits", [])]
    w.clock.advance(1.5)
    w.files.write("/models/digits/1/model.pt", b"part and rest")
    assert w.poll() == []
    w.clock.advance(1.5)
    assert w.poll() == []
    w.clock.advance(0.5)
    assert w.poll() == [("digits", [1])]


def test_a_table_needs_no_signatures() -> None:
    """A platform that can tell its signatures itself needs quiet time only."""
    w = world(settle_s=2.0)
    w.files.write("/models/digits/1/table.csv", b"key,value\n")
    w.clock.advance(2)
    assert w.poll() == [("digits", [1])]


@pytest.mark.parametrize(
    "name", ["20260102030405123456", "v2", "1.0", "-3", "2026-01-02"]
)
def test_a_name_that_only_looks_like_a_version_is_named(name: str) -> None:
    """Whoever wrote it waits for it, beside an older version or alone."""
    w = world()
    w.files.write(f"/models/digits/{name}/servable.json")
    w.files.write("/models/digits/lost+found/x")
    for _ in range(2):
        w.poll()
        assert w.source.problems()["digits"] == (
            f"'{name}' under /models/digits is no version of digits: that is a whole "
            "number up to 9223372036854775807, in one directory",
        )
        w.publish(1)


def test_of_two_directories_for_one_version_the_other_is_named() -> None:
    """Only one of them is served, and it may not be the one that was written last."""
    w = world()
    w.publish(1)
    w.publish("01")
    assert w.poll() == [("digits", [1])]
    (told,) = w.source.problems()["digits"]
    assert told.startswith("'01' under /models/digits is no version of digits: that is")


def test_batching_parameters_beside_the_versions_are_named() -> None:
    """Where they are they do nothing; each version has its own."""
    w = world()
    w.publish(1)
    w.files.write(
        "/models/digits/batching_params.pbtxt", b"max_batch_size { value: 4 }"
    )
    w.poll()
    (told,) = w.source.problems()["digits"]
    assert told.startswith("/models/digits/batching_params.pbtxt is not read: each")
    assert "--batching_parameters_file" in told


def test_base_path_that_is_a_version_is_told_so() -> None:
    """Whoever names one folder too many reads which one is meant."""
    w = world(ServableToMonitor("digits", "/models/digits/1"))
    w.publish(1)
    w.poll()
    told = " ".join(w.source.problems()["digits"])
    assert "it is a version itself; name /models/digits, in which it lies" in told


def test_base_path_that_holds_a_versions_files_is_told_so() -> None:
    """Whoever leaves the number out reads where the files belong."""
    w = world()
    w.files.write("/models/digits/model.pt", b"a package")
    w.poll()
    told = " ".join(w.source.problems()["digits"])
    assert "the files of a version lie in it; move them to /models/digits/1" in told


def test_file_of_another_kind_is_named_with_the_way_out() -> None:
    """What torch.save wrote, or another tool, shows what was dropped and what to do."""
    w = world(settle_s=2.0)
    w.files.write("/models/digits/1/model.pt", b"a state dict")
    w.files.write("/models/digits/2/model.onnx", b"of another tool")
    w.poll()
    told = " ".join(w.source.problems()["digits"])
    assert "model.pt alone does not say how it is called" in told
    assert "wait if it is still being copied, servable.json comes last" in told
    assert "tfs.export.save" in told
    assert "but model.onnx" in told


def test_what_was_written_long_ago_need_not_settle_again() -> None:
    """A restart serves a hand-written version at the first look."""
    w = world(settle_s=2.0)
    w.files.write("/models/digits/1/table.csv", b"key,value\n")
    w.clock.advance(3600)
    assert w.poll() == [("digits", [1])]


def test_a_clock_that_jumps_makes_no_copy_an_old_one() -> None:
    """Once the source runs, only quiet that it saw itself counts, not file times."""
    w = world(settle_s=2.0)
    w.publish(1)
    w.poll()
    w.files.write("/models/digits/2/table.csv", b"key,val")
    w.clock.set_wall(w.clock.wall_s() + 3600)
    assert w.poll() == []
    w.files.write("/models/digits/2/table.csv", b"key,value\na,1\n")
    w.clock.set_wall(w.clock.wall_s() - 7200)
    assert w.poll() == []
    w.clock.advance(2)
    assert w.poll() == [("digits", [2])]


def test_times_in_the_future_prove_nothing() -> None:
    """Files stamped by another machine's clock are watched for a while instead."""
    w = world(settle_s=2.0)
    w.files.write("/models/digits/1/table.csv", b"key,value\n")
    w.clock.set_wall(w.clock.wall_s() - 3600)
    assert w.poll() == [("digits", [])]
    w.clock.advance(2)
    assert w.poll() == [("digits", [1])]


def test_a_temporary_directory_is_never_a_version() -> None:
    """What writers have not renamed yet does not exist for the source."""
    w = world()
    w.files.write("/models/digits/.tmp-1-ab/servable.json", b"{}")
    assert w.poll() == [("digits", [])]


def test_a_file_named_like_a_version_is_not_one() -> None:
    """A version is a directory."""
    w = world()
    w.files.write("/models/digits/7", b"no directory")
    assert w.poll() == [("digits", [])]


def test_a_version_that_is_a_broken_link_is_told_until_it_leads_somewhere() -> None:
    """A version whose volume is not there yet looks like none at all."""
    w = world()
    w.publish(1)
    w.files.break_link("/models/digits/2")
    w.files.break_link("/models/digits/latest")
    assert w.poll() == [("digits", [1])]
    (told,) = w.source.problems()["digits"]
    assert told.startswith("version 2 of digits is a link that leads nowhere")
    assert told.endswith("/models/digits/2")
    w.publish(2)
    assert w.poll() == [("digits", [2])]
    assert "digits" not in w.source.problems()


def test_a_base_path_of_broken_links_says_no_more_than_that() -> None:
    """How versions are named is known to whoever made the link."""
    w = world()
    w.files.make_folder("/models/digits")
    w.files.break_link("/models/digits/1")
    w.poll()
    (told,) = w.source.problems()["digits"]
    assert "is a link that leads nowhere" in told


def test_a_version_overwritten_in_place_is_told_as_another_payload() -> None:
    """New files under an old version show in its fingerprint once they are still."""
    w = world(settle_s=2.0)
    w.publish(1)
    w.source.poll_once()
    before = w.target.take()[0].versions[0].payload
    w.files.write("/models/digits/1/model.pt", b"other weights")
    assert w.poll() == []
    w.clock.advance(2)
    w.source.poll_once()
    (call,) = w.target.take()
    after = call.versions[0].payload
    assert call.reason == "latest(1) of /models/digits: 1 overwritten in place"
    assert before is not None
    assert after is not None
    assert before.path == after.path
    assert before.fingerprint != after.fingerprint
    assert w.poll() == []


def test_a_version_that_is_wanted_again_has_to_be_still_again() -> None:
    """What was written under it while nobody wanted it may be half a copy."""
    w = world(settle_s=2.0)
    w.files.write("/models/digits/1/table.csv", b"key,value\n")
    w.clock.advance(2)
    assert w.poll() == [("digits", [1])]
    w.publish(2)
    assert w.poll() == [("digits", [2])]
    w.files.write("/models/digits/1/table.csv", b"key,va")
    w.files.remove("/models/digits/2")
    assert w.poll() == []
    w.clock.advance(1)
    w.files.write("/models/digits/1/table.csv", b"key,value\na,1\n")
    assert w.poll() == []
    w.clock.advance(2)
    assert w.poll() == [("digits", [1])]


def test_an_unreadable_version_that_serves_goes_on_serving() -> None:
    """A fault while reading one version's files takes nothing away."""
    w = world()
    w.publish(1)
    w.poll()
    w.files.break_path("/models/digits/1", OSError(5, "Input/output error"))
    assert w.poll() == []
    assert "Input/output error" in w.source.problems()["digits"][0]


def test_an_unreadable_new_version_leaves_the_old_one() -> None:
    """A version that cannot be read is not ready; the one before it stays."""
    w = world()
    w.publish(1)
    w.poll()
    w.publish(2)
    w.files.break_path("/models/digits/2", PermissionError(13, "Permission denied"))
    assert w.poll() == []
    w.files.break_path("/models/digits/2", None)
    assert w.poll() == [("digits", [2])]


def test_a_version_that_is_deleted_file_by_file_serves_to_the_end() -> None:
    """A version that is deleted file by file serves until its directory is gone."""
    w = world()
    w.publish(1)
    w.publish(2)
    assert w.poll() == [("digits", [2])]
    w.files.write("/models/digits/2/assets/words", b"left")
    w.poll()
    w.files.remove("/models/digits/2/servable.json")
    w.files.remove("/models/digits/2/model.pt")
    assert w.poll() == []
    assert "stays while its directory is there" in w.source.problems()["digits"][0]
    w.files.remove("/models/digits/2")
    assert w.poll() == [("digits", [1])]


def test_a_specific_version_that_is_absent_is_a_problem() -> None:
    """A wish that cannot be met shows, and does not stop the others."""
    w = world(monitor(policy=Specific((1, 7))))
    w.publish(1)
    assert w.poll() == [("digits", [1])]
    assert "version 7" in w.source.problems()["digits"][0]


def test_a_tensorflow_model_is_told_as_one() -> None:
    """Somebody who points at a SavedModel learns what is wrong."""
    w = world()
    w.files.write("/models/digits/1/saved_model.pb", b"")
    w.poll()
    assert "SavedModel" in w.source.problems()["digits"][0]


def test_a_third_partys_version_is_ready_once_it_is_still() -> None:
    """A directory of an unknown platform counts once it has not changed for a while."""
    servable = ServableToMonitor("x", "/models/x", platform="acme")
    w = world(servable, settle_s=2.0)
    w.files.write("/models/x/1/model.acme", b"")
    assert w.poll() == [("x", [])]
    w.clock.advance(2)
    w.source.poll_once()
    (call,) = w.target.take()
    assert call.versions[0].payload is not None
    assert call.versions[0].payload.platform == "acme"


def test_a_third_partys_version_may_be_found_by_its_contents() -> None:
    """Where there are other platforms, still files that nobody here knows may be theirs."""
    servable = ServableToMonitor("x", "/models/x")
    w = world(servable, settle_s=2.0, has_other_platforms=True)
    w.files.write("/models/x/1/model.acme", b"")
    w.files.write("/models/x/2/model.pt", b"")  # known, and its signatures are missing
    assert w.poll() == [("x", [])]
    w.clock.advance(2)
    assert w.poll() == [("x", [1])]
