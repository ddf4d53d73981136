"""What a log says about a failed run: which phase died, why, how sure that is, and what to change first."""
