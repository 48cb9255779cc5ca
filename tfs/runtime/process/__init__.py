"""Backend ``process``: interpreters beside the server, forked by a zygote."""
