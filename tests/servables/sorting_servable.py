"""A servable in plain Python, as a user writes it: no torch module, no TFS import."""

from __future__ import annotations

from typing import Any


class Sorting:
    """Sorts three numbers per row, scales them, and greets by name."""

    signatures = {  # noqa: RUF012  # as users write it
        "serving_default": {
            "method": "predict",
            "inputs": {
                "numbers": {"dtype": "float32", "shape": [-1, 3]},
                "names": {"dtype": "string", "shape": [-1]},
            },
            "outputs": {
                "sorted": {"dtype": "float32", "shape": [-1, 3]},
                "greeting": {"dtype": "string", "shape": [-1]},
            },
        }
    }

    def load(self, version: Any) -> None:
        scale = version.weights.get("scale")
        self.scale = 1.0 if scale is None else float(scale)

    def validate(self, numbers: Any, names: bytes) -> None:
        if not names:
            raise ValueError("the name is empty")
        if bool((numbers < 0).any()):
            raise ValueError("numbers must not be negative")

    def preprocess(self, numbers: Any, names: list[bytes]) -> dict[str, Any]:
        return {"numbers": numbers, "names": [name.decode() for name in names]}

    def predict(self, numbers: Any, names: list[str]) -> dict[str, Any]:
        return {"sorted": numbers.sort(1).values * self.scale, "names": names}

    def postprocess(self, outputs: dict[str, Any]) -> dict[str, Any]:
        names = outputs.pop("names")
        return {**outputs, "greeting": [f"hello {name}" for name in names]}
