"""Classification by one head (section 3): task, risk, landscape, gradient flow."""
