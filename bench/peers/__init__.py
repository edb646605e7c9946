"""Ropeway and its peers side by side: `python -m bench peers`.

catalogue.py says who is measured and with which settings, programs/ holds one small program per peer, and
measures*.py what they are asked to do. runner.py does it in turns; results.py keeps every sample; targets.py,
report.py and charts.py make of them what people read.
"""
