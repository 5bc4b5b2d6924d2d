"""Pictures of models, plans and measurements as HTML: plain facts and figures go in, markup comes out.

Notebooks show it and ``--html`` writes it. It needs no network and no script, and whatever a user named is escaped. Nothing is
measured or decided here, and no package of XRT that holds models is imported.
"""
