"""Checkpoints that are complete and verified or do not exist, contain no pickle, and load under any other plan.

A *checkpoint* is a folder of a store. Every rank writes a safetensors file of chunks and a manifest that describes
them; a small root manifest is written last. A *chunk* is a box of one tensor's elements that one rank wrote, with its
hash. Every manifest contains its own hash and the checkpoint's token, so a damaged file and a file of another save are
both detected. File names are derived from rank numbers; no file contains the path of another file.

Start with saver.py and loader.py. They receive tensors as `LocalTensor` (device/local_tensor.py) and must not know how
models are built or trained. weights.py, pretrained.py and export.py write and read weights alone, in file formats that
other programs use.
"""
