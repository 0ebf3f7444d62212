"""Exercises of the lessons, and the judgement of answers."""

from gpuwise.lab.exercises.catalogue import Exercise, Judgement, Solution, exercises, find_exercise, number_text

__all__ = ["Exercise", "Judgement", "Solution", "exercises", "find_exercise", "number_text"]
