"""The record of a process that outlives it: journals, a snapshot each second, and their recovery.

=======  ===========  ==========================================================================================
Box      `box`        writes the record of this process. Made by whatever records: an exporter, or `silent`
Record   `reading`    the values in the files of a record, at one moment, of a process that runs or has ended.
                      Nothing is locked. Made by `read_record`, for the views, the collector and `Dead`
Dead     `recovery`   the record of an ended process, with its locks, to be ended, delivered, moved or removed.
                      Made by `claim`; to be only read, without a lock, by `monitel_otlp.export.records.peek`
Journal  `journal`    the items of one signal, in the memory or on the disk. Made by `Box` and `Dead`
Folder   `folder`     an open folder, in memory or on the disk, with its lock
=======  ===========  ==========================================================================================
"""
