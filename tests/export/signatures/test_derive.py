from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import pytest
import torch
from torch import nn

from tfs.core.dtype import FLOAT32, INT64, STRING
from tfs.core.errors import InvalidArgument
from tfs.core.signature import FeatureKind, FeatureSpec, Method, TensorSpec
from tfs.export.signatures.derive import derive
from tfs.export.signatures.signature import Signature


class Double(nn.Module):
    def forward(self, x: torch.Tensor, bias: torch.Tensor | None = None) -> object:
        y = 2 * x
        return y if bias is None else y + bias


def tensor(value: object) -> torch.Tensor:
    assert isinstance(value, torch.Tensor)
    return value


class Named(NamedTuple):
    mean: torch.Tensor
    std: torch.Tensor


class Statistics(nn.Module):
    def forward(self, x: torch.Tensor) -> Named:
        return Named(x.mean(1), x.std(1))


class ByName(nn.Module):
    def forward(self, x: torch.Tensor) -> dict[str, object]:
        return {"loss": None, "logits": x * 1.0}


class FixedBatch(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.reshape(2, 3)


class Summed(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.sum(0)


class Star(nn.Module):
    def forward(self, *xs: torch.Tensor) -> torch.Tensor:
        return xs[0]


class Encoder(nn.Module):
    def forward(self, tokens: torch.Tensor, mask: torch.Tensor) -> object:
        kept = tokens * mask
        return {"pooled": kept.sum(1).float(), "each": kept.float()}


class WholeBatch(nn.Module):
    """Takes statistics over the batch, as BatchNorm does while it trains."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if len(x) < 2:
            raise ValueError("a variance needs two rows")
        return (x - x.mean(0)) / x.var(0)


class Positive(nn.Module):
    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"places": torch.nonzero(x > 0), "x": x}


def test_tensor_input_and_output_get_names_dtypes_and_a_free_batch() -> None:
    """Names come from the parameters, dtype and inner sizes from the example."""
    found = derive(Double(), Signature(torch.rand(2, 3)))
    assert found.signature.inputs == {"x": TensorSpec(FLOAT32, (-1, 3))}
    assert found.signature.outputs == {"output": TensorSpec(FLOAT32, (-1, 3))}
    assert found.signature.method is Method.PREDICT


def test_optional_parameter_without_example_is_no_input() -> None:
    """What the author gives no example of keeps the module's own default."""
    found = derive(Double(), Signature({"x": torch.rand(2, 3)}))
    assert list(found.signature.inputs) == ["x"]


def test_default_makes_an_input_optional_for_callers() -> None:
    """A default is an input with a value to use when it is left out."""
    options = Signature({"x": torch.rand(2, 3)}, defaults={"bias": torch.ones(1)})
    found = derive(Double(), options)
    assert found.signature.defaults["bias"].shape == (1,)
    assert torch.equal(
        tensor(found.outputs["output"]), 2 * tensor(found.example["x"]) + 1
    )


def test_default_is_the_example_of_an_input_that_has_none() -> None:
    """Whoever says what stands for an input need not say it twice."""
    options = Signature(torch.rand(2, 3), defaults={"mask": torch.ones(1, 3)})
    found = derive(Encoder(), options)
    assert list(found.signature.inputs) == ["tokens", "mask"]
    with pytest.raises(InvalidArgument, match="no example input for 'tokens'"):
        derive(Encoder(), replace(options, example_inputs={}))


def test_model_that_takes_no_single_row_is_batched_all_the_same(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Any other number of rows shows where the batch is; what one row gets is logged."""
    found = derive(WholeBatch(), Signature(torch.rand(3, 4)))
    assert found.signature.outputs["output"].shape == (-1, 4)
    assert "event=single_rows_fail" in caplog.text
    assert "a variance needs two rows" in caplog.text


def test_output_whose_size_depends_on_values_is_declared_free() -> None:
    """No example shows all the sizes that it may have."""
    options = Signature(
        torch.ones(2, 3), batched=False, dynamic={"places": [0], "x": [1]}
    )
    found = derive(Positive(), options)
    assert found.signature.outputs["places"].shape == (-1, 2)
    assert found.signature.outputs["x"].shape == (2, -1)
    for dynamic, complaint in (
        ({"place": [0]}, "no input or output of Positive.forward: x, places, x"),
        ({"places": [2]}, "dynamic dimension 2 of 'places': it has 2 dimensions"),
    ):
        with pytest.raises(InvalidArgument, match=complaint):
            derive(Positive(), replace(options, dynamic=dynamic))


@pytest.mark.parametrize(
    ("defaults", "complaint"),
    [
        ({"bias": 1.0}, "is a float; use a torch.Tensor"),
        ({"bias": torch.ones(1)}, r"float32\[1\], its example says float32\[-1, 3\]"),
        ({"bias": torch.ones(1, 3).long()}, r"is int64\[1, 3\]"),
    ],
)
def test_default_that_callers_would_be_refused_for_is_refused(
    defaults: dict[str, torch.Tensor], complaint: str
) -> None:
    """Whoever leaves the input out gets an answer and not the author's mistake."""
    options = Signature(
        {"x": torch.rand(2, 3), "bias": torch.rand(2, 3)}, defaults=defaults
    )
    with pytest.raises(InvalidArgument, match=complaint):
        derive(Double(), options)


def test_module_without_forward_is_told_so() -> None:
    """A module without ``forward`` is named as such, not as one without names."""
    with pytest.raises(InvalidArgument, match=r"Module\.forward does not exist"):
        derive(nn.Module(), Signature(torch.rand(2, 3)))


def test_padding_of_fixed_sizes_is_refused() -> None:
    """It would never be used, and requests of other lengths be refused."""
    options = Signature(torch.rand(2, 3), pad={"x": 0})
    with pytest.raises(InvalidArgument, match=r"dynamic=\{'x': \[1\]\}"):
        derive(Double(), options)


def test_features_of_another_type_than_their_input_are_refused() -> None:
    """No Example could be answered from."""
    features = {"f": FeatureSpec("x", FeatureKind.FIXED, INT64, (3,))}
    options = Signature(torch.rand(2, 3), features=features)
    with pytest.raises(InvalidArgument, match="'f' is int64, its input 'x' float32"):
        derive(Double(), options)


class Seen(nn.Module):
    seen: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen.add_(1)
        return self.seen.expand(len(x))


def test_output_that_is_a_view_of_a_buffer_is_what_the_call_gave() -> None:
    """Buffers are put back after the call; what was returned is not."""
    found = derive(Seen(), Signature(torch.rand(2, 3)))
    assert tensor(found.outputs["output"]).tolist() == [1, 1]


def test_example_of_an_input_with_a_default_has_rows_like_the_others() -> None:
    """What the author passes by row is cut by row when other numbers are tried."""
    rows = torch.rand(2, 3)
    options = Signature({"x": rows, "bias": rows}, defaults={"bias": torch.zeros(1, 3)})
    found = derive(Double(), options)
    assert found.signature.inputs["bias"].shape == (-1, 3)
    assert found.signature.outputs["output"].shape == (-1, 3)


def test_single_row_example_gets_a_second_different_row() -> None:
    """Probes need two rows that differ; they are made of the author's values."""
    found = derive(Double(), Signature(torch.arange(3.0)[None]))
    assert tensor(found.example["x"]).tolist() == [[0, 1, 2], [2, 0, 1]]
    assert tensor(found.outputs["output"]).shape == (2, 3)


def test_named_tuple_output_names_its_outputs() -> None:
    """Field names say more than positions."""
    found = derive(Statistics(), Signature(torch.rand(2, 5)))
    assert list(found.signature.outputs) == ["mean", "std"]


def test_a_list_of_strings_is_one_example_input() -> None:
    """A row per string, and not an input per string."""
    found = derive(Lengths(), Signature(["one", "three"]))
    assert found.example == {"words": [b"one", b"three"]}


def test_none_in_a_dict_is_left_out_and_others_can_be_chosen_from() -> None:
    """What a module returns while it trains is no output."""
    found = derive(ByName(), Signature(torch.rand(2, 3)))
    assert "loss" not in found.signature.outputs
    options = Signature(torch.rand(2, 3), output_names=["logits"])
    assert list(derive(ByName(), options).signature.outputs) == ["logits"]


@pytest.mark.parametrize(
    ("module", "example", "message"),
    [
        (FixedBatch(), torch.rand(2, 3), "another number of rows"),
        (Summed(), torch.rand(2, 3), "dimension 0 of every output"),
        (Star(), torch.rand(2, 3), r"instead of \*args"),
        (Double(), torch.rand(()), "batched=False"),
        (Double(), {"y": torch.rand(2, 3)}, "no parameter 'y'"),
        (Encoder(), torch.ones(2, 3), "no example input for 'mask'"),
        (Summed(), [["a", "b"], ["c", "d"]], r"rows of one tensor.*\{'x': \["),
        (Double(), [torch.rand(2, 3), torch.rand(3)], "share dimension 0"),
        (Encoder(), [torch.ones(2, 3), torch.ones(2, 4)], "fails on its example"),
    ],
)
def test_module_that_cannot_be_served_so_is_refused_with_a_reason(
    module: nn.Module, example: torch.Tensor, message: str
) -> None:
    """Each refusal says what was seen and what to change."""
    with pytest.raises(InvalidArgument, match=message):
        derive(module, Signature(example))


def test_unbatched_signature_keeps_every_dimension() -> None:
    """Without a batch nothing is free unless it is declared dynamic."""
    found = derive(Summed(), Signature(torch.rand(2, 3), batched=False))
    assert found.signature.inputs["x"].shape == (2, 3)
    assert found.signature.outputs["output"].shape == (3,)
    assert not found.signature.batched


def test_dynamic_input_frees_the_output_dimensions_that_follow_it() -> None:
    """Which output dimensions are free is seen by calling with another size."""
    options = Signature(
        {"tokens": torch.ones(2, 6, dtype=torch.int64), "mask": torch.ones(2, 6)},
        dynamic={"tokens": (1,), "mask": (1,)},
        pad={"tokens": 0},
        mask={"tokens": "mask"},
        length_of={"each": "tokens"},
    )
    signature = derive(Encoder(), options).signature
    assert signature.outputs["each"].length_of == "tokens"
    with pytest.raises(InvalidArgument, match="an input with a pad value"):
        derive(Encoder(), replace(options, length_of={"each": "mask"}))
    assert signature.inputs["tokens"] == TensorSpec(INT64, (-1, -1), 0, "mask")
    assert signature.outputs["pooled"].shape == (-1,)
    assert signature.outputs["each"].shape == (-1, -1)


def test_classify_names_its_output_scores_and_derives_a_feature_per_input() -> None:
    """tf.Example clients can call a classifier without further description."""
    options = Signature(torch.rand(2, 3), method="classify", labels=("a", "b", "c"))
    signature = derive(Double(), options).signature
    assert list(signature.outputs) == ["scores"]
    feature = signature.features["x"]
    assert (feature.kind, feature.dtype, feature.shape) == (
        FeatureKind.FIXED,
        FLOAT32,
        (3,),
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "classify", "labels": ["a"]}, "1 labels for 3 scores"),
        ({"method": "regress"}, r"\[batch\] or \[batch, 1\]"),
        ({"method": "classify", "output_names": ["p"]}, "needs a batched output"),
        ({"method": "classify", "features": {}}, "fills input 'x' .* name one in"),
    ],
)
def test_output_that_does_not_fit_its_method_is_refused(
    options: dict[str, object], message: str
) -> None:
    """What Classify and Regress answer has a fixed form."""
    with pytest.raises(InvalidArgument, match=message):
        derive(Double(), Signature(torch.rand(2, 3), **options))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"x": torch.rand(2, 3, dtype=torch.float64)}, r"return scores\.float\(\)"),
        ({"x": torch.rand(2, 3), "bias": torch.rand(2, 3, dtype=torch.complex64)},
         "no tf.Example holds complex64"),
    ],
)  # fmt: skip
def test_signature_that_every_request_would_fail_is_refused(
    inputs: dict[str, torch.Tensor], message: str
) -> None:
    """Examples must be able to fill the inputs, and scores are float32 on the wire."""

    class Absolute(nn.Module):
        def forward(
            self, x: torch.Tensor, bias: torch.Tensor | None = None
        ) -> torch.Tensor:
            return x if bias is None else x + bias.abs()

    with pytest.raises(InvalidArgument, match=message):
        derive(Absolute(), Signature(inputs, method="classify"))


def test_sizes_that_vary_need_a_filling_for_examples() -> None:
    """Rows of several Examples lie in one tensor; with pad they can."""
    rows = {"tokens": torch.ones(2, 4), "mask": torch.ones(2, 4)}
    free = {"tokens": [1], "mask": [1]}

    class Pooled(Encoder):
        def forward(self, tokens: torch.Tensor, mask: torch.Tensor) -> object:
            return (tokens * mask).sum(1)

    open_ = Signature(rows, method="regress", dynamic=free)
    with pytest.raises(InvalidArgument, match="filled up, by pad of that input"):
        derive(Pooled(), open_)
    padded = replace(open_, pad={"tokens": 0}, mask={"tokens": "mask"})
    assert list(derive(Pooled(), padded).signature.features) == ["tokens"]


def test_input_with_a_default_is_no_feature() -> None:
    """It is a setting of the call; Examples that do not know it get the default."""
    rows = {"x": torch.rand(2, 3), "bias": torch.zeros(1)}
    options = Signature(rows, method="classify", defaults={"bias": torch.zeros(1)})
    assert list(derive(Double(), options).signature.features) == ["x"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "guess"}, "unknown method"),
        ({"labels": ["a"]}, "classify"),
        ({"output_names": "xy"}, "sequences"),
    ],
)
def test_options_are_checked_when_they_are_made(
    options: dict[str, object], message: str
) -> None:
    """A wrong option fails where it was written."""
    with pytest.raises(InvalidArgument, match=message):
        Signature(torch.rand(1), **options)  # type: ignore[arg-type]


class Lengths(nn.Module):
    def forward(self, words: list[bytes]) -> dict[str, object]:
        return {
            "length": torch.tensor([len(word) for word in words]),
            "upper": [word.decode().upper() for word in words],
        }


def test_strings_are_lists_of_bytes_on_both_sides() -> None:
    """A list of strings stands for a string tensor."""
    found = derive(Lengths(), Signature({"words": ["a", "bcd"]}))
    assert found.signature.inputs == {"words": TensorSpec(STRING, (-1,))}
    assert found.signature.outputs["upper"] == TensorSpec(STRING, (-1,))
    assert found.example["words"] == [b"a", b"bcd"]
    assert found.outputs["upper"] == [b"A", b"BCD"]
