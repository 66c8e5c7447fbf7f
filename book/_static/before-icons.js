// Loaded before the theme's icon script, which would otherwise replace the <i> inside widgets' buttons.
window.FontAwesomeConfig = { observeMutations: false };
