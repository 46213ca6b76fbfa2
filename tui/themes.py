"""The two themes of the screens: Textual's own, with a lighter page, and with what has the focus unlike a warning."""

from __future__ import annotations

from typing import Final

from textual.theme import Theme

DARK: Final = Theme(
    name="tenure-dark",
    primary="#0178D4",
    secondary="#004578",
    warning="#FFA62B",
    error="#D5556F",
    success="#4EBF71",
    accent="#3FA9F5",
    foreground="#E0E0E0",
    background="#121212",
    surface="#1E1E1E",
    panel="#242F38",
    dark=True,
    variables={
        "text-success": "#8AD4A1",
        "text-warning": "#FFC473",
        "text-error": "#F28FA3",
        "text-accent": "#7CC7FF",
        "primary-muted": "#0C304C",
    },
)
LIGHT: Final = Theme(
    name="tenure-light",
    primary="#004578",
    secondary="#0178D4",
    warning="#8A5300",
    error="#A3142F",
    success="#1B6E37",
    accent="#0B63B0",
    foreground="#1A1A1A",
    background="#FAFAFA",
    surface="#F0F0F0",
    panel="#DCE4EB",
    dark=False,
    variables={
        "text-success": "#17632F",
        "text-warning": "#7D4A00",
        "text-error": "#9B1230",
        "text-accent": "#0B5594",
        "primary-muted": "#C9DDF0",
    },
)
