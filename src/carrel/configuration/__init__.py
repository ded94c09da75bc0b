"""The configuration of a cluster: one file with what its admins decide, and nothing else.

Reading order:

    schema gpu_memory          the sections and their fields, each with its reason
    fields reasons             how a field is declared; the reasons, for those who print them
    reading contradictions     from the file to the value and back, with all mistakes at once
    current                    the configuration in force in a process, and what of a change it can take over
    moved                      which options of processes became fields
"""
