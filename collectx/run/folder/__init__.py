"""The files that a run writes; `layout` names them."""
