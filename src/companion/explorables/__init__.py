"""The kinds of live figure: for each, its module for the browser and what Python needs for it."""
