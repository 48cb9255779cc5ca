"""The library of the paper's figure 2: packages, movable objects and sessions."""
