"""Assets: the tiny Flux base model, the scenes it was trained on, and the code that trained it."""
