// Stands in for the theme's icon script of 1.5 MB. The theme's style sheet draws the same icons with web
// fonts; the script would replace every <i> of a page, also those inside the widgets' buttons.
