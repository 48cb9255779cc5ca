from __future__ import annotations

import re
import struct
from pathlib import Path

import pytest

from tests.servables.fakes import ID, FakeInterpreter, task_for
from tfs.core.dtype import BOOL, FLOAT32, INT64, STRING
from tfs.core.errors import DataLoss, ServingError
from tfs.core.resources import MAIN, RAM_BYTES, Resource
from tfs.core.servable import Outcome, Servable
from tfs.core.signature import DEFAULT_SIGNATURE, Method, Signature, TensorSpec
from tfs.core.tensor_view import TensorView
from tfs.core.version.manifest import Producer
from tfs.core.version_directory import commit, new_version
from tfs.servables.platform import LoadContext
from tfs.servables.platforms.hashmap import Hashmap, read_table

CONTEXT = LoadContext(lambda _: FakeInterpreter())

PRICES = "item,price:float32,stock,name\nb-1,2.5,3,bolt\nn-7,0.5,100,nut\n"


def loaded(path: Path) -> Servable:
    loader = Hashmap().loader(str(path), CONTEXT)
    loader.load(ID)
    return loader.servable


def looked_up(servable: Servable, *keys: bytes) -> dict[str, TensorView]:
    done: list[Outcome] = []
    (name,) = servable.signatures[DEFAULT_SIGNATURE].inputs
    inputs = {name: TensorView(STRING, (len(keys),), keys)}
    servable.submit(task_for(servable.signatures, inputs, done))
    (outcome,) = done
    assert not isinstance(outcome, ServingError), outcome
    return dict(outcome)


def test_csv_columns_become_outputs_with_their_types(tmp_path: Path) -> None:
    """Every column but the key is an output; its type is declared or found."""
    (tmp_path / "table.csv").write_text(PRICES)
    signature = loaded(tmp_path).signatures[DEFAULT_SIGNATURE]
    assert signature.inputs == {"item": TensorSpec(STRING, (-1,))}
    assert signature.outputs == {
        "price": TensorSpec(FLOAT32, (-1,)),
        "stock": TensorSpec(INT64, (-1,)),
        "name": TensorSpec(STRING, (-1,)),
        "found": TensorSpec(BOOL, (-1,)),
    }


def test_what_the_page_writes_is_loaded(tmp_path: Path) -> None:
    """docs/version-directory.md writes a table with its manifest in Python."""
    page = (Path(__file__).parents[3] / "docs/version-directory.md").read_text()
    codes = re.findall(r"```python\n(.*?)```", page, re.S)
    (code,) = (each for each in codes if "commit(" in each)
    exec(code.replace("/models/prices", str(tmp_path)), {})
    outputs = looked_up(loaded(tmp_path / "7"), b"A1", b"gone")
    assert bytes(outputs["found"].data) == b"\x01\x00"  # type: ignore[arg-type]


def test_lookup_answers_row_by_row_and_marks_what_is_missing(tmp_path: Path) -> None:
    """A batch keeps its order; an absent key gives neutral values and found=false."""
    (tmp_path / "table.csv").write_text(PRICES)
    outputs = looked_up(loaded(tmp_path), b"n-7", b"gone", b"b-1")
    prices = struct.unpack("<3f", bytes(outputs["price"].data))  # type: ignore[arg-type]
    assert (prices[0], prices[2]) == (0.5, 2.5)
    assert prices[1] != prices[1]
    assert outputs["stock"].data == struct.pack("<3q", 100, 0, 3)
    assert outputs["name"].data == (b"nut", b"", b"bolt")
    assert outputs["found"].data == b"\1\0\1"


@pytest.mark.parametrize(
    "values", [("5", "18446744073709551615"), ("12_34", "5_6"), ("1.5", "2_5.0")]
)
def test_what_a_number_would_change_stays_a_string(
    tmp_path: Path, values: tuple[str, str]
) -> None:
    """Ids beyond int64 are not rounded to float32, "12_34" is no 1234."""
    (tmp_path / "table.csv").write_text(f"id,v\na,{values[0]}\nb,{values[1]}\n")
    (column,) = read_table(str(tmp_path / "table.csv")).columns
    assert column.dtype is STRING
    assert column.cells == tuple(value.encode() for value in values)


def test_a_fraction_among_large_numbers_makes_them_floats(tmp_path: Path) -> None:
    """Numbers beside a fraction are no ids, and may be rounded."""
    (tmp_path / "table.csv").write_text("id,v\na,1.5\nb,18446744073709551615\n")
    (column,) = read_table(str(tmp_path / "table.csv")).columns
    assert column.dtype is FLOAT32


def test_a_cell_may_be_as_long_as_it_likes(tmp_path: Path) -> None:
    """A table is no stranger's file: what CSV readers refuse by default is read."""
    (tmp_path / "table.csv").write_text(f"key,text\na,{'x' * 300_000}\n")
    text = looked_up(loaded(tmp_path), b"a")["text"].data
    assert text == (b"x" * 300_000,)


def test_json_table_of_single_values_has_one_output(tmp_path: Path) -> None:
    """A plain object from key to number is a table too."""
    (tmp_path / "table.json").write_text('{"a": 1.5, "b": 2}')
    outputs = looked_up(loaded(tmp_path), b"b", b"a")
    assert outputs["value"].data == struct.pack("<2f", 2, 1.5)


def test_json_may_be_written_with_any_blanks(tmp_path: Path) -> None:
    """Blanks may stand anywhere in the JSON where other writers put them."""
    text = ' \n{\r\n\t"a" : 1.5 ,\n "b":{ "value" :2 }\n}\n '
    (tmp_path / "table.json").write_text(text)
    found = looked_up(loaded(tmp_path), b"b")["value"].data
    assert found == struct.pack("<f", 2)


def test_json_rows_may_have_several_values(tmp_path: Path) -> None:
    """Equal keys in every row make the columns."""
    (tmp_path / "table.json").write_text(
        '{"a": {"x": 1, "t": "one"}, "b": {"x": 2, "t": "two"}}'
    )
    outputs = looked_up(loaded(tmp_path), b"a")
    assert outputs["x"].data == struct.pack("<q", 1)
    assert outputs["t"].data == (b"one",)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("table.csv", "", "first line"),
        ("table.csv", "key\na\n", "first line"),
        ("table.csv", "key,v\n", "no rows"),
        ("table.csv", "key,v\na,1\na,2\n", "line 3.*'a' is there already"),
        ("table.csv", "key,v\na,1,2\n", "line 2 has 3 values"),
        ("table.csv", "key,v:float32\na,x\n", "'v' is no float32"),
        ("table.csv", "key,v:bool\na,1\n", "type must be one of"),
        ("table.csv", "key:int64,v\n1,1\n", "key column is always a string"),
        ("table.csv", "key,v,v\na,1,2\n", "different names"),
        ("table.csv", "key,found\na,1\n", "'found'"),
        ("table.json", "[1]", "an object"),
        ("table.json", "{", "bad table.json"),
        ("table.json", '{"a": {"x": 1}, "b": {"y": 1}}', "key 'b'"),
        ("table.json", '{"a": null}', "number or a string"),
        ("table.json", "{}", "an object"),
        ("table.json", '{"a": 1, "a": 2}', "'a' is there already"),
        ("table.json", '{"a": 1,}', "a key is missing at character 8"),
        ("table.json", '{"a": 1 "b": 2}', "a comma is missing at character 8"),
        ("table.json", "{1: 1}", "a key and a colon"),
        ("table.json", '{"a" 1}', "a key and a colon"),
        ("table.json", '{"a": 1} x', "more behind the object"),
        ("table.json", '{"a": ' + "[" * 100_000, "nested too deep"),
    ],
)
def test_damaged_table_is_refused_with_its_place(
    tmp_path: Path, name: str, text: str, message: str
) -> None:
    """The version's status says which line or key is wrong, and how."""
    (tmp_path / name).write_text(text)
    with pytest.raises(DataLoss, match=message):
        loaded(tmp_path)


def test_table_that_differs_from_its_manifest_is_data_loss(tmp_path: Path) -> None:
    """A committed version is checked against its digests before it is read."""
    signature = Signature(
        Method.PREDICT,
        {"k": TensorSpec(STRING, (-1,))},
        {"v": TensorSpec(INT64, (-1,)), "found": TensorSpec(BOOL, (-1,))},
    )
    with new_version(str(tmp_path), 1) as folder:
        Path(folder, "table.csv").write_text("k,v\na,1\n")
        commit(folder, "hashmap", {DEFAULT_SIGNATURE: signature}, {}, Producer())
    assert looked_up(loaded(tmp_path / "1"), b"a")["v"].data == struct.pack("<q", 1)
    (tmp_path / "1" / "table.csv").write_text("k,v\na,2\n")
    with pytest.raises(DataLoss, match=r"table\.csv"):
        loaded(tmp_path / "1")


def test_estimate_grows_with_the_file(tmp_path: Path) -> None:
    """Python objects take several times the file; the estimate is an upper bound."""
    (tmp_path / "table.csv").write_text(PRICES)
    resources = Hashmap().loader(str(tmp_path), CONTEXT).estimate_resources()
    assert resources[Resource(MAIN, RAM_BYTES, 0)] > 8 * len(PRICES)
