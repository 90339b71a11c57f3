def render_fleet(rows, skipped, lang):
    return "<p>"
