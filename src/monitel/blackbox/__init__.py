"""The record of a process that outlives it: journals, a snapshot each second, and their recovery.

Box      writes the record of this process. Made by what records: an exporter, or `silent`
Record   what the files of a record hold, read without a lock. Made by `read_record`: views, collector, `Dead`
Dead     the record of an ended process, to be ended, delivered, moved or removed. Made by `claim`, with its locks;
         only to be read, without them, by `monitel_otlp.export.records.peek`
Journal  the items of one signal, in memory or on the disk. Made by `Box` and `Dead`
Folder   an open folder, in memory or on the disk, with its lock
"""
