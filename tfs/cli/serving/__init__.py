"""``tfs serve``: runs a model server."""
