"""Makes torch's own layers and operators in a loaded model quicker, with equal bits."""
