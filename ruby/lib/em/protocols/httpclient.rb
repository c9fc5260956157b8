# frozen_string_literal: true

require 'em/protocols/http_response'

module EventMachine
  module Protocols
    warn 'EventMachine::Protocols::HttpClient is old; use em-http-request in new programs' if $VERBOSE

    # One request over HTTP, as a deferrable that succeeds with `{status:, headers:, content:}`.
    class HttpClient < Connection
      include EventMachine::Deferrable

      METHODS = %w[GET HEAD POST PUT DELETE].freeze
      private_constant :METHODS

      # Options: host, port, ssl, request (a path), query_string, verb or method, content, content_type, cookie, version,
      # basic_auth, host_header.
      def self.request(args = {})
        port = args[:port] || 80
        EventMachine.connect(args[:host], port, self) do |client|
          # Not an argument of `initialize`, which subclasses may have defined without it.
          client.instance_variable_set(:@args, args)
        end
      end

      def post_init
        @response = HttpResponse.new
        @connected = false
      end

      def connection_completed
        @connected = true
        send_request(@args)
      end

      def receive_data(data)
        return if @response.complete?

        @response << data
        dispatch if @response.complete?
      rescue HttpResponse::Malformed => e
        set_deferred_status(:failed, status: 0, error: e.message)
        close_connection
      end

      def unbind
        return set_deferred_status(:failed, status: 0) unless @connected
        return if @settled

        @response.finish
        @response.complete? ? dispatch : set_deferred_status(:failed, status: 0)
      end

      private

      def send_request(args)
        verb = (args[:verb] || args[:method] || 'GET').to_s.upcase
        raise ArgumentError, "unsupported HTTP method #{verb}" unless METHODS.include?(verb)

        @response.without_content if verb == 'HEAD'
        lines = ["#{verb} #{target(args)} HTTP/#{args[:version] || '1.1'}", "Host: #{args[:host_header] || args[:host]}",
                 'Connection: close']
        content = args[:content].to_s
        if %w[POST PUT].include?(verb) || !content.empty?
          lines << "Content-type: #{args[:content_type] || 'application/x-www-form-urlencoded'}"
          lines << "Content-length: #{content.bytesize}"
        end
        lines << "Cookie: #{args[:cookie]}" if args[:cookie]
        lines << "Authorization: #{authorization(args[:basic_auth])}" if args[:basic_auth]
        raise ArgumentError, 'a request must not contain line breaks in its headers' if lines.any? { |line| line.match?(/[\r\n]/) }

        send_data("#{lines.join("\r\n")}\r\n\r\n")
        send_data(content) unless content.empty?
      end

      def target(args)
        path = (args[:request] || args[:uri] || '/').to_s
        path = "/#{path}" unless path.start_with?('/')
        args[:query_string] ? "#{path}?#{args[:query_string]}" : path
      end

      def authorization(auth)
        "Basic #{["#{auth[:username]}:#{auth[:password]}"].pack('m0')}"
      end

      def dispatch
        @settled = true
        set_deferred_status(:succeeded, content: @response.content, headers: @response.header_lines, status: @response.status)
        close_connection
      end
    end
  end
end
