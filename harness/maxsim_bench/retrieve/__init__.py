"""Room `retrieve`: data set and encoder in; token embeddings, rankings and fidelity rows out.

May import: declare (the cell), record, backends; `contrastive.py`, which trains, also `maxsim`.
"""
