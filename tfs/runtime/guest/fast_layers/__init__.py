"""What runs quicker of a loaded model, to the same bits: torch's own layers and operators."""
