SELECT
    page,
    date_format(window.start, 'yyyy-MM-dd HH:mm') AS minute,
    count(*) AS views,
    approx_count_distinct(visitor) AS visitors
FROM source
GROUP BY window(at, '1 minute'), page
