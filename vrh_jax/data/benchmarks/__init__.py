"""Loaders of public benchmarks: one file per concern, one ``Task`` per benchmark.

A loader turns the owner's files into ``source.Rows``: annotation rows in memory, samples made
when indexed, images (``data.images``) decoded on worker threads. ``files.read_parquet`` reads
Parquet annotations without their images; ``ImageFolder`` finds images by annotated names;
``image_key`` gives COCO images one id over all benchmarks.
"""
