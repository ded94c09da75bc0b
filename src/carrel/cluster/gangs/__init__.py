"""Gangs as the cluster shows them: `gang_sizes` reads how many pods a gang has, `gang_members` which are there.

gang_sizes         how many pods a gang has, by what made them
gang_members       its pods, and how far they are
"""
