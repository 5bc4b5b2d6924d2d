"""Pages and notebook cells of models, plans and measurements."""
