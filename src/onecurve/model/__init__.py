"""The user's model before it has memory: its constructor recorded on fake tensors, and made real where needed.

This package knows torch modules, fake tensors and seeds. It must not know about plans, meshes or process groups: the
initial weights depend only on the seed and on the model.

Start with deferred.py, which runs the user's constructor. recorder.py records and replays its operations, with the help
of recording_context.py (what torch does differently meanwhile), weight_files.py (tensors read from files) and
compiled.py (takes a user's torch.compile off). materialize.py makes the recorded tensors of a module real.
fake_mode.py keeps fake tensors out of real runs, data_dependent.py lets forward passes on fake tensors continue where
they read values, and fake_operations.py adds operations that fake tensors lack.
"""
