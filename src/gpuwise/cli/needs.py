"""How often options are needed, as groups of the help: those in no group stand first, those for experts under --help-all."""

from __future__ import annotations

from cyclopts import Group

SOMETIMES = Group("Sometimes", sort_key=30)
OWN_CODE = Group("Your own code", sort_key=40)
EXPERTS = Group("For experts", sort_key=80)
