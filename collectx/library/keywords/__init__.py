"""Keyword arguments of the collectors' constructors: dataclasses whose fields are the keywords, grouped by theme, and
their parser. `collectx.library.request` combines the groups, one class for each constructor.

Used in the trainer's process, by `collectx.library`.
"""
