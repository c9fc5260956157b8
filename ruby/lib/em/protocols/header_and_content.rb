# frozen_string_literal: true

module EventMachine
  module Protocols
    # Requests like those of HTTP: header lines, an empty line, and content of the length that a header says.
    class HeaderAndContentProtocol < LineAndTextProtocol
      CONTENT_LENGTH = /\Acontent-length:\s*(\d+)\s*\z/i.freeze
      private_constant :CONTENT_LENGTH

      def initialize(*)
        super
        begin_request
      end

      def receive_line(line)
        if line.empty?
          end_headers unless @hc_headers.empty?
        else
          receive_first_header_line(line) if @hc_headers.empty?
          @hc_headers << line
        end
      end

      def receive_binary_data(content)
        end_request(content)
      end

      def receive_first_header_line(_line); end

      def receive_headers(_headers); end

      def receive_request(_headers, _content); end

      # Makes a hash of header lines: `User-Agent: x` becomes `user_agent: 'x'`.
      def headers_2_hash(headers)
        self.class.headers_2_hash(headers)
      end

      def self.headers_2_hash(headers)
        headers.each_with_object({}) do |line, hash|
          name, value = line.split(':', 2)
          next unless value && name.match?(/\A[\w-]+\z/)

          hash[name.downcase.tr('-', '_').to_sym] = value.strip
        end
      end

      private

      def begin_request
        @hc_headers = []
      end

      def end_headers
        receive_headers(@hc_headers)
        length = @hc_headers.filter_map { |line| line[CONTENT_LENGTH, 1] }.last
        if length.nil? || length.to_i.zero?
          end_request('')
        elsif length.to_i > MaxBinaryLength
          receive_error('overlength content')
          close_connection
        else
          set_binary_mode(length.to_i)
        end
      end

      def end_request(content)
        headers = @hc_headers
        begin_request
        receive_request(headers, content)
      end
    end
  end
end
