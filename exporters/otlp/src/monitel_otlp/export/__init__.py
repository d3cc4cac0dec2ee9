"""The way of items from the threads of the application to the outcome of requests, also those of ended processes.

`recorder` appends items to the journals, and `sender` sends them; `engine` owns both, the box and the rounds of a
process. `application_thread` runs code of the application. `records` delivers what ended processes have left, after
`collector` has ended the records of killed ones. The encoders are in `metrics`, `messages` and `traces`.
"""
