"""Platforms: how models of each are loaded and called inside an interpreter.

One module per platform, named like it (``python``, ``torch_export``, ``torch_package``,
``torchscript``), with a function ``load``. All of them build on ``torch_callable``.
"""
