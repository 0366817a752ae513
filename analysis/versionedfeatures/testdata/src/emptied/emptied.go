package emptied // want `feature A breaks the rule in-range: it is gone`
