"""What the chapters need around the mathematics: claim checks, figures, explorers."""
