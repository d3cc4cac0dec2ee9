"""The table of ``monitel top``, in a terminal and elsewhere: columns, cells, headings and the order of rows."""
