"""Data sets for object detection: their shape, the digit scenes, VOC and COCO folders, and how training fetches them.

Built on `eli.lab.data`; anything in `eli.lab.detection` may import it. `open.py` opens a data set by its name.
"""
