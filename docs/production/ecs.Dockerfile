# The image for ECS: that of docs/production/Dockerfile, with Dagster's instance and workspace.
# docker build -f docs/production/ecs.Dockerfile -t registry.example.org/topicberg-ecs:1.0.0 docs/production
FROM registry.example.org/topicberg:1.0.0
COPY dagster.yaml ecs-launcher.yaml workspace.yaml /tmp/dagster/
# The containers of one task share the loopback.
RUN cat /tmp/dagster/dagster.yaml /tmp/dagster/ecs-launcher.yaml >/opt/dagster/dagster.yaml \
    && sed 's/host: code/host: localhost/' /tmp/dagster/workspace.yaml >/opt/dagster/workspace.yaml
