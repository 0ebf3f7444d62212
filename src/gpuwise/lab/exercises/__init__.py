"""Exercises of the lessons, and the judgement of answers."""

from gpuwise.lab.exercises.catalogue import Exercise, Judgement, Solution, exercises, find_exercise, said

__all__ = ["Exercise", "Judgement", "Solution", "exercises", "find_exercise", "said"]
