"""Serving: what a model needs to be served and how fast it answers, one path for every command.

``formats`` the weights, ``engines`` what differs between engines and how one holds and splits a model, ``memory`` what that
takes, ``iteration`` the seconds of a prefill or decode step, ``streams`` and ``processor`` one sequence without an engine,
``replica`` one replica of a model served and the choice among the ways to serve it.
"""
